# find_package(headroom) for other projects: library, headers, program.

include(CMakePackageConfigHelpers)
install(TARGETS headroom EXPORT headroom_targets)
install(TARGETS headroom_program)
install(DIRECTORY include/headroom TYPE INCLUDE)
install(EXPORT headroom_targets FILE headroomTargets.cmake NAMESPACE headroom:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headroom)

configure_package_config_file(cmake/headroomConfig.cmake.in ${CMAKE_BINARY_DIR}/headroomConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headroom)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/headroomConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/headroomConfig.cmake ${CMAKE_BINARY_DIR}/headroomConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headroom)
